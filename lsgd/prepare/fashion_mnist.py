"""The source of Fashion-MNIST: four files, used as downloaded."""

from lsgd.prepare.fetch import PublishedDataset, PublishedFile

SET = PublishedDataset(
    "fashion-mnist",
    files=(
        PublishedFile(
            "train-images-idx3-ubyte.gz",
            26_421_880,
            "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        PublishedFile(
            "train-labels-idx1-ubyte.gz",
            29_515,
            "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        PublishedFile(
            "t10k-images-idx3-ubyte.gz",
            4_422_102,
            "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        PublishedFile(
            "t10k-labels-idx1-ubyte.gz",
            5_148,
            "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    mirrors=(
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ),
    summary="60,000 + 10,000 images of clothes, 31 MB",
)
