"""The source of CoNLL-2003 in English: three files of tagged sentences, used as downloaded."""

from lsgd.prepare.fetch import PublishedDataset, PublishedFile

SET = PublishedDataset(
    "conll2003",
    files=(
        PublishedFile(
            "eng.train",
            3_281_528,
            "sha256:eac0822f501353f265383ddf1edb0dcd42a1b6eefd3e383d7074db98c38eb41c",
        ),
        PublishedFile(
            "eng.testa",
            827_012,
            "sha256:aedc4ccbd1ae9795feaa0e86fe72d195b0258abed9d705b630d1c889276fac1e",
        ),
        PublishedFile(
            "eng.testb",
            748_096,
            "sha256:0632f32c090ef31c223135b7fee3187a7cf8e65c4015c7866bb7783428cdd9a6",
        ),
    ),
    mirrors=(
        "https://raw.githubusercontent.com/synalp/NER/c0ea07c81ec3512b5047dcd804b0ac2b10a3bdfc/"
        "corpus/CoNLL-2003",
    ),
    summary="20,744 sentences of news with tagged names, 5 MB",
    licence="its texts are Reuters news, which NIST distributes for research only",
)
