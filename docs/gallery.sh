#!/usr/bin/env bash
# Draws the pictures of gallery.md: docs/gallery.sh [NAME ...] from the repository's root, with .venv active.
set -euo pipefail

# name, options of `hpcstencil plot`; inputs in gradients/ are fits
pictures="
acoustic --field p --time 0.85
advection_diffusion
allen_cahn
brusselator --field u
burgers
cahn_hilliard
custom
euler --field rho --time 0.6
fitzhugh_nagumo --field u
gray_scott --field v
heat
kuramoto_sivashinsky
layered_ground --time 0.7
layered_ground:gather --probes hydrophones
maxwell --time 2.4
neural_field
nonlinear_diffusion
scattering --time 1.75
schroedinger --field re
shallow_water --field h
swift_hohenberg
wave --time 0.7
gradients/heat_source
gradients/heater
gradients/spots
"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
while read -r picture options; do
  [[ -n $picture ]] || continue
  input=${picture%%:*} name=${picture/:/_}  # "input:further" is a further picture of the same run
  name=${name#gradients/}
  [[ $# -eq 0 || " $* " == *" $input "* ]] || continue
  command=run
  [[ $input != gradients/* ]] || command=fit
  [[ -e $folder/$input.h5 ]] || hpcstencil "$command" "inputs/$input.toml" --output "$folder/$input.h5" --quiet
  # shellcheck disable=SC2086  # options are words
  hpcstencil plot "$folder/$input.h5" $options -o "$folder/$name.png"
  # Half the size and 256 colours are enough for a page.
  python - "$folder/$name.png" "docs/images/$name.png" <<'PYTHON'
import sys
from PIL import Image
image = Image.open(sys.argv[1]).convert("RGB")
image.resize((image.width // 2, image.height // 2), Image.LANCZOS).quantize(256, kmeans=2).save(sys.argv[2], optimize=True)
PYTHON
done <<<"$pictures"

[[ $# -eq 0 || " $* " == *" layered_model "* ]] || exit 0
hpcstencil fit inputs/gradients/layered_model.toml -o "$folder/layered_model.h5" --quiet
python - inputs/gradients/layered_model.hdf5 "$folder/layered_model.h5" docs/images/layered_model.png <<'PYTHON'
import sys
import h5py
import matplotlib
import tomllib
from PIL import Image
matplotlib.use("Agg")
from matplotlib import pyplot
with h5py.File(sys.argv[1]) as data, h5py.File(sys.argv[2]) as fit:
    models = {"model": data["model"][:], "first guess": data["guess"][:], "found": fit["equation.c"][:]}
    given = tomllib.loads(fit.attrs["input"])
shots, receivers = given["ensemble"], given["probes"]["receivers"]
figure, axes = pyplot.subplots(3, 1, figsize=(5, 8.4), layout="constrained", sharex=True)
for axis, (name, c) in zip(axes, models.items()):
    image = axis.imshow(c.T, extent=(0, 1.2, 0.8, 0), vmin=1.5, vmax=2.7)
    axis.set(title=f"c, {name}", ylabel="depth")
axes[0].plot(receivers["x"], receivers["y"], "w.", markersize=2)
axes[0].plot(shots["equation.xs"], shots["equation.ys"], "r*", markersize=8)
axes[-1].set_xlabel("x")
figure.colorbar(image, ax=axes, shrink=0.5)
figure.savefig(sys.argv[3], dpi=80)
Image.open(sys.argv[3]).convert("RGB").quantize(256, kmeans=2).save(sys.argv[3], optimize=True)
PYTHON
