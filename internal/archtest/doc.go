// Package archtest checks imports between this module's packages. They point down:
//
//	cmd → internal/api → orchestrator → gather → workqueue → bitfield
//
// within internal/api from the server to internal/api/runs and from both to apicore. endpoints, the SDK, imports
// no store. The rules are in rules_test.go; a package without a rule fails the test, so that each new one gets its
// place.
//
// It parses the sources instead of calling go list: it sees the files of all platforms, and go test knows the files
// the result depends on, so the result is not stale.
package archtest
