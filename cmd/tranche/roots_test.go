package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"testing"
)

const rootsVariable = "TRANCHE_TEST_ROOTS"

// In an image with no files the program knows the authorities that the system does not.
func TestAuthoritiesWithoutFiles(t *testing.T) {
	t.Parallel()
	if os.Getenv(rootsVariable) != "" { // the child: a process reads them once
		pool, err := x509.SystemCertPool()
		if err != nil || pool.Equal(x509.NewCertPool()) {
			t.Fatalf("there are none (%v)", err)
		}
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAuthoritiesWithoutFiles$")
	cmd.Env = append(os.Environ(), rootsVariable+"=1", "SSL_CERT_FILE=/nowhere", "SSL_CERT_DIR=/nowhere")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
