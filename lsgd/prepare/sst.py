"""The source of the Stanford Sentiment Treebank: three files, one tree a line, as downloaded."""

from lsgd.prepare.fetch import PublishedDataset, PublishedFile

SET = PublishedDataset(
    "sst",
    files=(
        PublishedFile(
            "train.txt",
            2_160_058,
            "sha256:e2f3f41b0b1e6d4dddc0effe3bfc2d27ed8928079aa9a03d652311614fc5feb7",
        ),
        PublishedFile(
            "dev.txt",
            280_825,
            "sha256:0e9336aed6e4730e19f58d00a77b3f0297efdb755f7b5e598c98a05e3f97ea40",
        ),
        PublishedFile(
            "test.txt",
            559_614,
            "sha256:6e54806dee95cf80cd918e7dfb3f6770f6df24bf826f289a4d1f709e1c8f6761",
        ),
    ),
    mirrors=(
        "https://raw.githubusercontent.com/Shawn1993/cnn-text-classification-pytorch/"
        "555a0d9d2cf74b0322a3366da927cc0d61dda171/trees",
    ),
    summary="11,855 parsed sentences of reviews with a class at each node, 3 MB",
    licence="no licence is stated; sentences of reviews from rottentomatoes.com",
)
