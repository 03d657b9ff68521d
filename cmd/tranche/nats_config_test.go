package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/cli"
)

func TestNATSConfig(t *testing.T) {
	t.Parallel()
	b, seeds := &bench{T: t}, regexp.MustCompile(`\bS[A-Z][A-Z0-9]{56}\b`)
	roles := []string{"nats", "config", "--service", "accounts=accounts,other", "--caller", "web=accounts",
		"--viewer", "ops"}
	b.want(runProgram(t, nil, "", roles...), cli.ExitOK, `"TRANCHE-accounts": {`, "$WEB_PASSWORD",
		`{ service: "tranche.direct.accounts", response_threshold: "1s", accounts: ["TRANCHE", "TRANCHE-web"] }`,
		`{ service: "$JS.ACK.TRANCHE_WORK.accounts.*.*.*.*.*", response_threshold: "5s", accounts: ["TRANCHE-accounts"] }`)
	b.want(runProgram(t, nil, "", append(roles, "--operator")...), cli.ExitUsage, "--out")
	b.want(runProgram(t, nil, "", append(roles, "--caller", "x=y")...), cli.ExitUsage, "which no service has")
	b.want(runProgram(t, nil, "", append(roles, "--caller", "x=")...), cli.ExitUsage, "--caller")
	for ending, args := range map[string][]string{".nk": nil, ".creds": {"--operator"}} {
		dir := t.TempDir()
		b.want(runProgram(t, nil, "", append(append(roles, "--out", dir), args...)...), cli.ExitOK, "nats-server -c "+dir,
			filepath.Join(dir, "ops"+ending))
		conf, err := os.ReadFile(filepath.Join(dir, "server.conf"))
		if err != nil || strings.Contains(string(conf), "PASSWORD") || seeds.Match(conf) {
			t.Errorf("the configuration has a secret: %v", err)
		}
	}
}
