// Package ship tests what users install: each artefact is built as in a release and used as by its user. The image
// runs with a read-only root, dpkg installs the package into a separate root and systemd checks its unit, helm
// renders the chart, and Compose's own parser reads the Compose file, whose commands for Tranche are run.
//
// docs/install.md, "What was not tried", lists what cannot run here.
package ship
