// Package ship has the tests of what people install: each artefact is made as a release makes it, and used as its user
// would use it. The image runs in a container with a read-only root, the package is installed by dpkg into a root of
// its own and its unit judged by systemd, the chart is rendered by helm, and the Compose file is read by Compose's own
// parser, what it says of Tranche being run.
//
// What cannot be run where these tests run stands in docs/install.md, under "What was not tried".
package ship
