"""Maps the top-level folders into one import namespace: `backends/` is `hearth.backends`
(docs/decisions/0001). The pages of `docs/` are installed with them, as data. A wheel holds the
library of `kernels/cpu` as well, if there is a compiler: it is for one kind of machine then.
"""

import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel, get_platform
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "kernels" / "cpu"))
import build_library

FOLDERS = ("app", "backends", "quant", "kernels", "assets")
packages = [f"hearth.{folder}" for folder in (*FOLDERS, "docs")]
packages += [f"hearth.{folder}.{sub}" for folder in FOLDERS for sub in find_packages(folder)]


class BuildWithKernels(build_py):
    """Adds the library to what is installed."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "hearth", "kernels", "cpu")
        try:
            if build_library.is_current():
                self.copy_tree(str(build_library.library_path().parent), str(target / "built"))
            else:
                build_library.build(target)
        except build_library.NoCompiler as error:
            self.warn(f"without kernels for processors: {error}")


class WheelOfKernels(bdist_wheel):
    """For any Python, and for one kind of machine where it holds the library."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        target = Path(self.bdist_dir, "hearth", "kernels", "cpu")
        if platform == "any" and build_library.library_path(target).exists():
            platform = get_platform(self.bdist_dir).replace("-", "_").replace(".", "_")
        return python, abi, platform


setup(
    packages=packages,
    package_dir={f"hearth.{folder}": folder for folder in (*FOLDERS, "docs")},
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelOfKernels},
)
