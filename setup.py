"""Maps the top-level rooms into one import namespace: `backends/` is `hearth.backends`
(docs/decisions/0001).
"""

from setuptools import find_packages, setup

ROOMS = ("app", "backends", "quant", "kernels", "assets")
packages = [f"hearth.{room}" for room in ROOMS]
packages += [f"hearth.{room}.{sub}" for room in ROOMS for sub in find_packages(room)]
setup(packages=packages, package_dir={f"hearth.{room}": room for room in ROOMS})
