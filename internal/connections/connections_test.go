package connections

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// canary is what must not be quoted.
const canary = "CANARY-s3cr3t"

// parse reads a file beside which there are some others.
func parse(t *testing.T, text string) (*Connections, error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"token": canary + "\n", "dsn": "postgres://me:" + canary + "@db.example:5433/ledger?sslmode=disable", "empty": "\n",
		"lines": canary + "\r\nX-Evil: 1", "nodsn": "host=" + canary + " port=x", "long": strings.Repeat("x", 5000),
	} {
		testenv.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return Parse(filepath.Join(dir, "c.yaml"), []byte(text))
}

const good = `# what plans may reach
sources:
  ledger:
    dsn: {file: dsn}
    max_connections: 3
    max_rows: 1000
    max_bytes: 1MiB
    max_time: 90s
secrets:
  token: {file: token, hosts: [api.example, "api.example:8443", "http://127.0.0.1:8081", "127.0.0.2", "[::1]:9"]}
http:
  allow_private: ["127.0.0.1:8081", 10.0.0.0/8, "::1", "[fd00::1]:80"]
  proxy: http://proxy.example:3128
  max_response: 1MiB
  max_connections: 7
  hosts:
    api.example: {max_connections: 2}
    "api.example:8443": {max_connections: 3}
`

func TestParse(t *testing.T) {
	t.Parallel()
	c := testenv.Must(parse(t, good))(t)
	s, err := c.Source("ledger")
	if err != nil || s.MaxConnections != 3 || s.MaxRows != 1000 || s.MaxBytes != 1<<20 ||
		s.MaxTime != workqueue.Duration(90*time.Second) {
		t.Errorf("%+v, %v", s, err)
	}
	cfg, err := s.config()
	if err != nil || cfg.ConnConfig.Host != "db.example" || cfg.ConnConfig.Password != canary ||
		cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] != "on" {
		t.Errorf("%+v, %v", cfg, err)
	}
	for at, want := range map[string]bool{
		"127.0.0.1:8081": true, "127.0.0.1:8082": false, "10.9.8.7:1": true, "[::ffff:10.1.1.1]:1": true, "[::1]:5": true,
		"[fd00::1]:80": true, "[fd00::1]:81": false, "11.0.0.1:1": false, "[::1%lo]:5": true,
	} {
		allowed := false
		for _, n := range c.HTTP.AllowPrivate {
			allowed = allowed || n.Contains(netip.MustParseAddrPort(at))
		}
		testenv.Same(t, allowed, want, "whether %s is allowed", at)
	}
	for u, want := range map[string]int{
		"https://API.example/x": 2, "https://api.example:8443": 3, "http://api.example:80": 2, "https://b.example": 0,
	} {
		parsed, _ := url.Parse(u)
		if h := c.HTTP.Host(parsed); h == nil && want != 0 || h != nil && h.MaxConnections != want {
			t.Errorf("%s: %+v, want %d", u, h, want)
		}
	}
	testenv.Same(t, len(testenv.Must(parse(t, "# nothing\n"))(t).Sources), 0, "an empty file")
}

// PROOF: who may do what, 16.
func TestSecretsGoWhereTheyMay(t *testing.T) {
	t.Parallel()
	c := testenv.Must(parse(t, good))(t)
	s := testenv.Must(c.Secret("token"))(t)
	for u, want := range map[string]bool{
		"https://api.example/x": true, "https://API.EXAMPLE.:443/": true, "https://api.example:8443": true,
		"http://api.example": false, "http://api.example:443": false, "https://api.example:444": false,
		"https://sub.api.example": false, "https://api.example.evil.example": false, "http://127.0.0.1:8081": true,
		"https://127.0.0.1:8081": false, "http://127.0.0.2": true, "https://127.0.0.2": true, "http://[::1]:9": true,
	} {
		parsed, _ := url.Parse(u)
		value, err := s.Value(parsed)
		if (err == nil) != want || want != (value == canary) || err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %q, %v", u, value, err)
		}
	}
}

func TestRedact(t *testing.T) {
	t.Setenv("F_TEST_A", `a"b&c d`)
	t.Setenv("F_TEST_B", `a"b&c d and more`)
	c, err := parse(t, "secrets: {a: {env: F_TEST_A, hosts: [x.example]}, b: {env: F_TEST_B, hosts: [x.example]}}")
	testenv.NoError(t, err)
	for _, test := range [][2]string{
		{`<a"b&c d>`, "<[secret a]>"}, {`<a"b&c d and more>`, "<[secret b]>"}, {`a%22b%26c+d`, "[secret a]"},
		{`{"x":"a\"b\u0026c d"}`, `{"x":"[secret a]"}`}, {`a%22b&c%20d`, "[secret a]"}, {"nothing", "nothing"},
	} {
		text, want := test[0], test[1]
		testenv.Same(t, c.Redact(text), want, "%s", text)
	}
}

// A short secret is hidden as a word; of words that contain it nothing would be left.
func TestShortSecretsAreWords(t *testing.T) {
	t.Parallel()
	for _, test := range [][2]string{
		{"bank", "[x]"}, {"bank:bank@bank", "[x]:[x]@[x]"}, {"bank_prod, banks and embank", "bank_prod, banks and embank"},
		{"bankbank bank", "bankbank [x]"}, {"the bank.", "the [x]."}, {"ébank", "ébank"}, {`"bank"`, `"[x]"`},
	} {
		testenv.Same(t, hide(test[0], "bank", "[x]"), test[1], "%s", test[0])
	}
	testenv.Same(t, hide("xxlong-secretxx", "long-secret", "[x]"), "xx[x]xx", "in the middle")
	testenv.Same(t, hide("a-?-b ?-", "-?", "[x]"), "a[x]-b ?-", "twice")
	testenv.Same(t, hide("text", "", "[x]"), "text", "without a secret")
}

// A secret in a file can be changed while it is in use, and the old one is still kept out of errors.
func TestSecretsAreReadAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) { testenv.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("first-one")
	c := testenv.Must(Parse(path, []byte("secrets: {t: {file: token, hosts: [x.example]}}")))(t)
	s := c.Secrets["t"]
	read := func(after time.Duration) string {
		s.since = time.Now().Add(-after)
		text, err := s.read()
		testenv.Same(t, err, nil, "the secret")
		return text
	}
	write("second-one")
	if got := read(-time.Hour); got != "first-one" { // however slow this machine is
		t.Errorf("at once: %s", got)
	}
	testenv.Same(t, read(rereadAfter), "second-one", "later")
	testenv.Same(t, c.Redact("first-one second-one"), "[secret t] [secret t]", "redacted")
	testenv.NoError(t, os.Remove(path))
	testenv.Same(t, read(rereadAfter), "second-one", "without the file")
}

// PROOF: who may do what, 16.
// Errors name the line and the field, and nothing of what stands there.
func TestErrorsQuoteNothing(t *testing.T) {
	t.Setenv("F_TEST_EMPTY", "")
	for _, test := range [][2]string{
		{
			"sources:\n  a:\n    dsn: postgres://me:" + canary + "@x/y",
			"c.yaml:3:10: sources.a.dsn: the text itself does not belong here",
		},
		{"sources:\n  a:\n    dsn: {postgres://me:" + canary + "@x: 1}",
			"c.yaml:3:11: sources.a.dsn: want fields: env, file"},
		{"sources:\n  a: {}", "c.yaml:2:6: sources.a: it has no dsn"},
		{"sources:\n  a:\n    dsn: {file: dsn, env: X}", "c.yaml:3:11: sources.a.dsn: say where it is: either env"},
		{"sources:\n  a:\n    dsn: {file: nodsn}", "c.yaml:3:11: sources.a.dsn: it is not a connection string"},
		{"sources:\n  a:\n    dsn: {file: nothere}", "no such file"},
		{"sources:\n  a:\n    dsn: {env: F_TEST_EMPTY}", "the environment has no F_TEST_EMPTY"},
		{
			"sources:\n  a:\n    dsn: {file: dsn}\n    max_rows: 0",
			"c.yaml:4:15: sources.a.max_rows: want a whole number within 1",
		},
		{"sources:\n  a:\n    dsn: {file: dsn}\n    max_rows: 1e3", "sources.a.max_rows: want a whole number"},
		{"sources:\n  a:\n    dsn: {file: dsn}\n    max_time: 5", "sources.a.max_time: want a duration like 90s"},
		{"sources:\n  a:\n    dsn: {file: dsn}\n    max_bytes: 5", "sources.a.max_bytes: want a size"},
		{"sources:\n  a b: {}", "c.yaml:2:3: sources: want sources by their names"},
		{"sources:\n  a:\n    pasword: x", "c.yaml:3:5: sources.a.pasword: there is no such field; there are dsn"},
		{"secrets:\n  t: " + canary, "c.yaml:2:6: secrets.t: want fields: env, file, hosts; this is a text"},
		{"secrets:\n  t: {file: token}", "say which hosts it may be sent to"},
		{"secrets:\n  t: {file: token, hosts: [\"*.x\"]}", "secrets.t.hosts[0]: want a host like"},
		{"secrets:\n  t: {file: token, hosts: [\"http://x/path\"]}", "secrets.t.hosts[0]: want a host like"},
		{"secrets:\n  t: {file: token, hosts: [\"ftp://x\"]}", "secrets.t.hosts[0]: want a host like"},
		{"secrets:\n  t: {file: empty, hosts: [x]}", "is empty"},
		{"secrets:\n  t: {file: lines, hosts: [x]}", "it has a control character"},
		{"secrets:\n  t: {file: long, hosts: [x]}", "has more than 4096 bytes"},
		{"secrets:\n  t: {file: token, hosts: [x]}\n  t: {file: token, hosts: [x]}", "c.yaml:3:3: secrets.t appears twice"},
		{"secrets:\n  t: &a {file: token, hosts: [x]}", "anchors and aliases are not allowed"},
		{"http: {allow_private: [10.0.0.300]}", "c.yaml:1:24: http.allow_private[0]: want an address like"},
		{"http: {allow_private: 10.0.0.0/8}", "http.allow_private: want a list, each entry"},
		{"http: {proxy: \"http://u:" + canary + "@p\"}", "http.proxy: want a URL like"},
		{"http:\n  hosts:\n    x.example: {ca: token}", "c.yaml:3:17: http.hosts.x.example: ca: no certificate"},
		{"http:\n  hosts:\n    x.example: {cert: token}", "cert and key go together"},
		{"http:\n  hosts:\n    x.example: {cert: token, key: token}", "cert and key: "},
		{"a: [" + canary, "this is not YAML"},
		{"a: !" + canary + " b", "c.yaml:1:4: tags, directives and marks of keys are not allowed"},
		{"a: '" + canary, "c.yaml:1:4: this is not YAML"},
		{"http:\n\tproxy: " + canary, "c.yaml:2:1: a tab"},
		{canary, "c.yaml:1:1: want fields: sources, secrets, http, smtp; this is a text"},
		{"sources:\n  a:\n    dsn: {file: dsn}\n    transaction_pooler: " + canary, "want true or false; this is a text"},
		{"smtp: {tls: " + canary + "}", "c.yaml:1:13: smtp.tls: want one of starttls, tls, none; this is a text"},
		{"- 1", "c.yaml:1:1: want fields: sources, secrets, http, smtp; this is a list"},
		{"http: {}\n---\nhttp: {}", "c.yaml:3:5: found a second document"},
	} {
		text, want := test[0], test[1]
		_, err := parse(t, text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
	_, err := Load(filepath.Join(t.TempDir(), "none"))
	testenv.Says(t, err, "connections: open ", "no file")
}

// A password that was changed is used for the next connection.
func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dsn := testenv.EmptyDatabase(t)
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, "dsn"), []byte(dsn), 0o600))
	c := testenv.Must(Parse(filepath.Join(dir, "c.yaml"),
		[]byte("sources: {a: {dsn: {file: dsn}}, b: {dsn: {file: dsn}, allow_superuser: true}}")))(t)
	for name, want := range map[string]string{"a": "is a superuser, which no transaction", "b": ""} {
		pool := testenv.Must(c.Sources[name].Open(t.Context()))(t)
		_, err := pool.Exec(t.Context(), "CREATE TABLE x ()")
		pool.Close()
		said := c.Sources[name].Explain(err)
		if want == "" {
			want = "cannot execute CREATE TABLE in a read-only transaction (25006)"
		}
		if !strings.Contains(said, want) || strings.Contains(said, "127.0.0.1") {
			t.Errorf("%s: %s", name, said)
		}
	}
}

// PROOF: who may do what, 12.
// A role that may become a superuser is one: a query can call set_config('role', …).
func TestMembersOfSuperusersAreRefused(t *testing.T) {
	t.Parallel()
	database := testenv.EmptyDatabase(t)
	admin := testenv.Must(pgx.Connect(t.Context(), database))(t)
	defer func() { _ = admin.Close(context.Background()) }()
	serving, url := testenv.Role(t, database, "")
	source := &Source{Name: "a"}
	all := &Connections{Sources: map[string]*Source{"a": source}}
	testenv.NoError(t, all.Serve(t.Context(), testenv.Connect(t, url)))
	other, _ := testenv.Role(t, database, "")
	for role, want := range map[string]bool{
		"plain": false, "member IN ROLE CURRENT_USER": true, "writer IN ROLE pg_write_server_files": true,
		"signaler IN ROLE pg_signal_backend": true, "node IN ROLE " + serving: true, "reader IN ROLE " + other: false,
	} {
		name := "\"" + strings.Fields(role)[0] + uuid.NewString() + "\""
		of := strings.Replace(strings.TrimPrefix(role, strings.Fields(role)[0]), "CURRENT_USER", admin.Config().User, 1)
		testenv.Must(admin.Exec(t.Context(), "CREATE ROLE "+name+of))(t)
		testenv.Must(admin.Exec(t.Context(), "SET SESSION AUTHORIZATION "+name))(t)
		err := source.CheckRole(t.Context(), admin)
		if _, refused := errors.AsType[*RoleError](err); refused != want || err != nil && !refused {
			t.Errorf("%s: %v", role, err)
		}
		testenv.Must(admin.Exec(t.Context(), "RESET SESSION AUTHORIZATION; DROP ROLE "+name))(t)
	}
}
