// Package archtest checks which packages of this module import which. Imports point down:
//
//	cmd → internal/api → orchestrator → gather → workqueue → bitfield
//
// within internal/api from the server to internal/api/runs and from both to the kernel; and endpoints, the SDK,
// stands aside and knows no store. The rules are in rules_test.go; a package
// without a rule fails the test, so that a new one gets its place on purpose.
//
// The sources are parsed here instead of asking go list: the files of every platform are seen, and go test knows which
// files the result depends on, so that it does not show an old one.
package archtest
