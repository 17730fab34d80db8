"""The preparation of datasets on disk: download, unpack, verify, index, check and shard."""
