"""Maps the top-level folders into one import namespace: `backends/` is `hearth.backends`
(docs/decisions/0001). The pages of `docs/` are installed with them, as data.
"""

from setuptools import find_packages, setup

FOLDERS = ("app", "backends", "quant", "kernels", "assets")
packages = [f"hearth.{folder}" for folder in (*FOLDERS, "docs")]
packages += [f"hearth.{folder}.{sub}" for folder in FOLDERS for sub in find_packages(folder)]
setup(
    packages=packages,
    package_dir={f"hearth.{folder}": folder for folder in (*FOLDERS, "docs")},
)
