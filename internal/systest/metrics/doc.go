// Package metrics has the tests of the rules in deploy/prometheus: by promtool, and by a real Prometheus that scrapes
// real nodes, of which one dies, with services that fail and die, and a schedule that is stuck.
package metrics
