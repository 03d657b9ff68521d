package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// From a server that nobody can log in to, by the line that it prints, to users with roles.
func TestTheFirstTokenAndThoseAfter(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	s := launch(t, true, "--database", database, "--nats", testenv.NATS(t).URL(), "--auth", "on")
	eventually(t, "serve says how to make a token", func() bool {
		return strings.Contains(s.log.String(), "tranche token create --database ")
	})
	url := s.where["api"]
	do := func(env []string, args ...string) (string, string, int) {
		t.Helper()
		var out, says bytes.Buffer
		cmd := command(t, append(env, "TRANCHE_URL="+url), args...)
		cmd.Stdout, cmd.Stderr = &out, &says
		_ = cmd.Run() // its code is looked at
		return out.String(), says.String(), cmd.ProcessState.ExitCode()
	}
	if _, says, code := do(nil, "run", "list"); code != cli.ExitOther || !strings.Contains(says, "--token-file") {
		t.Errorf("without a token: exit %d: %s", code, says)
	}
	out, says, code := do(nil, "token", "create", "--database", database, "--name", "ann", "--role", "admin")
	secret := strings.TrimSpace(out)
	if code != cli.ExitOK || !access.WellFormed(secret) || strings.Contains(says, secret) {
		t.Fatalf("the first token: exit %d, %q: %s", code, out, says)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, says, code = do(nil, "--token-file", file, "run", "list")
	if code != cli.ExitOK || !strings.Contains(says, "chmod 600") {
		t.Errorf("with a file that others can read: exit %d: %s", code, says)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	asAnn := []string{"TRANCHE_TOKEN_FILE=" + file}
	out, says, code = do(asAnn, "--json", "token", "create", "--name", "vic", "--role", "viewer", "--expires-in", "1h")
	var vic struct {
		ID        string `json:"id"`
		Role      string `json:"role"`
		Secret    string `json:"secret"`
		CreatedBy string `json:"created_by"`
		ExpiresAt string `json:"expires_at"`
	}
	if err := json.Unmarshal([]byte(out), &vic); err != nil || code != cli.ExitOK || vic.CreatedBy != "ann" ||
		vic.Role != "viewer" || vic.ExpiresAt == "" {
		t.Fatalf("a token through the API: exit %d, %v: %s%s", code, err, out, says)
	}
	asVic := []string{"TRANCHE_TOKEN=" + vic.Secret}
	if _, says, code := do(asVic, "run", "list"); code != cli.ExitOK || says != "" {
		t.Errorf("a viewer looks: exit %d: %s", code, says)
	}
	if _, says, code := do(asVic, "run", "pause", "--all"); code != cli.ExitOther ||
		!strings.Contains(says, "role operator") {
		t.Errorf("a viewer pauses: exit %d: %s", code, says)
	}
	if out, _, _ := do(asAnn, "token", "list"); !strings.Contains(out, "vic") || strings.Contains(out, vic.Secret[3:]) {
		t.Errorf("the list is %s", out)
	}
	login, err := http.Post(url+"/api/v1/session", "application/json", strings.NewReader(`{"token":"`+vic.Secret+`"}`))
	if err != nil || login.Body.Close() != nil || login.StatusCode != http.StatusOK {
		t.Fatal(login, err)
	}
	if out, _, _ := do(asAnn, "session", "list"); !strings.Contains(out, "vic") || !strings.Contains(out, vic.ID[:8]) {
		t.Errorf("the sessions are %s", out)
	}
	for _, place := range [][]string{nil, {"--database", database}} {
		want := map[bool]int{true: cli.ExitOK, false: cli.ExitOther}[place == nil]
		out, says, code := do(asAnn, append([]string{"session", "revoke", "vic"}, place...)...)
		if code != want || !strings.Contains(out+says, "vic") {
			t.Errorf("ending sessions %v: exit %d: %s%s", place, code, out, says)
		}
	}
	if _, says, code := do(asAnn, "token", "revoke", vic.ID[:8]); code != cli.ExitOK {
		t.Errorf("revoking: exit %d: %s", code, says)
	}
	if _, says, code := do(asVic, "run", "list"); code != cli.ExitOther || !strings.Contains(says, "revoked") {
		t.Errorf("with a revoked token: exit %d: %s", code, says)
	}
	for _, wrong := range [][]string{
		{"--token", secret[:30], "run", "list"},
		{"--token", secret, "--token-file", file, "run", "list"},
		{"--token-file", file + ".not", "run", "list"},
		{"token", "create", "--name", "tranche", "--role", "admin"},
		{"token", "create", "--name", "x", "--role", "root"},
		{"token", "create", "--name", "x", "--role", "viewer", "--expires-in", "-1h"},
		{"token", "list", "--database", database, "--data-dir", t.TempDir()},
	} {
		if _, says, code := do(nil, wrong...); code != cli.ExitUsage || strings.Contains(says, secret[:30]) {
			t.Errorf("%q: exit %d: %s", wrong[:2], code, says)
		}
	}
	nowhere := filepath.Join(t.TempDir(), "mistyped")
	_, says, code = do(nil, "token", "list", "--data-dir", nowhere)
	if code != cli.ExitOther || !strings.Contains(says, nowhere) {
		t.Errorf("a directory without a database: exit %d: %s", code, says)
	}
	if _, err := os.Stat(nowhere); err == nil {
		t.Error("the mistyped directory was made")
	}
	if _, err := s.End(t); err != nil {
		t.Error(err)
	}
	if strings.Contains(s.log.String(), secret[3:]) || strings.Contains(s.log.String(), vic.Secret[3:]) {
		t.Error("a secret is in the log")
	}
}

// An address that strangers can reach is refused with the remedy, before anything else is started.
func TestServeRefusesToBeOpen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen", "0.0.0.0:0"}, "--auth on"},
		{[]string{"--listen", "0.0.0.0:0", "--auth", "on"}, "--tls-cert"},
		{[]string{"--listen", "0.0.0.0:0", "--behind-proxy"}, "--auth on"},
		{[]string{"--auth", "on", "--tls-cert", "x"}, "--tls-key"},
		{[]string{"--oidc-issuer", "https://id.example"}, "--auth on"},
		{[]string{"--auth", "on", "--oidc-issuer", "https://id.example"}, "--public-url"},
		{[]string{"--auth", "on", "--oidc-issuer", "https://id.example", "--public-url", "https://t.example",
			"--oidc-client-id", "t", "--oidc-roles", "staff=king"}, "viewer, operator and admin"},
	} {
		dir := filepath.Join(t.TempDir(), "d")
		var says bytes.Buffer
		cmd := command(t, nil, append([]string{"serve", "--data-dir", dir}, c.args...)...)
		cmd.Stderr = &says
		if err := cmd.Run(); err == nil || !strings.Contains(says.String(), c.want) {
			t.Errorf("%q: %v: %s; want the remedy %s", c.args, err, says.String(), c.want)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%q left a data directory", c.args)
		}
	}
}
