package systest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

const (
	// mostCompressed is what an image may have in a registry, which is what a machine pulls.
	mostCompressed = 40 << 20
	// stopping is what a stop may take: the grace of serve, and what ending the container adds on a busy machine. It is
	// killed after killing.
	stopping, killing = 50 * time.Second, 60 * time.Second
)

// engine is podman with a store of its own.
type engine struct {
	program string
	flags   []string
}

// containers makes the images, and what runs them.
func containers(t *testing.T) *engine {
	t.Helper()
	dir, err := os.MkdirTemp("", "ship-") //nolint:usetesting // its files belong to several users, and podman removes them
	testenv.NoError(t, err)
	e := &engine{program: installed(t, "podman"), flags: []string{"--root", filepath.Join(dir, "root"), "--runroot",
		filepath.Join(dir, "run"), "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none",
		"--runtime", "runc"}}
	t.Cleanup(func() {
		_ = e.command(context.Background(), "rm", "--all", "--force", "--time", "1").Run()
		testenv.NoError(t, os.RemoveAll(dir))
	})
	cmd := command(t.Context(), "scripts/image.sh", "dev", runtime.GOARCH)
	cmd.Env = append(os.Environ(), "PODMAN_FLAGS="+strings.Join(e.flags, " "))
	cmd.Env = append(cmd.Env, version...)
	output(t, cmd)
	return e
}

func (e *engine) command(ctx context.Context, args ...string) *exec.Cmd {
	return command(ctx, e.program, slices.Concat(e.flags, args)...)
}

func (e *engine) run(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimSpace(output(t, e.command(t.Context(), args...)))
}

// start runs a service of the Compose file, in the machine's network, where names of other services are what at says.
func (e *engine) start(t *testing.T, name string, s *composeService, at *strings.Replacer, more ...string) {
	t.Helper()
	args := append([]string{"run", "--name", name, "--network", "host", "--health-interval", "disable",
		"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"}, more...)
	if s.ReadOnly {
		args = append(args, "--read-only", "--read-only-tmpfs=false")
	}
	for _, c := range s.CapDrop {
		args = append(args, "--cap-drop", c)
	}
	for _, o := range s.SecurityOpt {
		args = append(args, "--security-opt", strings.ReplaceAll(o, ":true", ""))
	}
	for k, v := range s.Environment {
		args = append(args, "--env", k+"="+at.Replace(v))
	}
	for _, v := range s.Volumes {
		args = append(args, "--volume", v.Source+":"+v.Target)
	}
	args = append(args, "localhost/"+s.Image)
	for _, word := range s.Command {
		args = append(args, at.Replace(word))
	}
	e.run(t, args...)
}

// The images are small. As the Compose file says, one role makes the schema, Tranche serves as another one, with a
// read-only root and no rights, and a run goes through the service of the other image. It is healthy, ends within its
// grace when it is asked to, and has written nothing but in its volume.
func TestImagesAsComposeRunsThem(t *testing.T) {
	e, services := containers(t), compose(t)
	e.checkSize(t, "tranche:dev")
	e.checkSize(t, "tranche-interest:dev")
	ns, database := testenv.NATS(t), testenv.EmptyDatabase(t)
	owner, _ := testenv.Role(t, database, "")
	app, _ := testenv.Role(t, database, "")
	testenv.Must(testenv.Connect(t, database).Exec(t.Context(), "ALTER SCHEMA public OWNER TO "+owner))(t)
	parsed := testenv.Must(url.Parse(database))(t)
	target := fmt.Sprintf("%s/.s.PGSQL.%s", parsed.Query().Get("host"), parsed.Query().Get("port"))
	if !parsed.Query().Has("host") {
		target = parsed.Host
	}
	port := strconv.Itoa(testenv.QuietPort(t))
	at := strings.NewReplacer("postgres://tranche_owner:owner@postgres:5432/tranche",
		"postgres://"+owner+":"+owner+"@"+testenv.NewProxy(t, target).Addr()+parsed.Path+"?sslmode=disable",
		"postgres://tranche_app:app@postgres:5432/tranche",
		"postgres://"+app+":"+app+"@"+testenv.NewProxy(t, target).Addr()+parsed.Path+"?sslmode=disable",
		"nats://nats:4222", ns.URL(), "tranche_app", app, "0.0.0.0:9480", "127.0.0.1:0")
	where := []string{"--detach", "--env", "TRANCHE_LISTEN=0.0.0.0:" + port} // the health check reads it, too

	migrate, serve, interest := services["migrate"], services["tranche"], services["interest"]
	e.start(t, "migrate", &migrate, at)
	e.start(t, "tranche", &serve, at, where...)
	testenv.Until(t, time.Minute, "the container is healthy", func() bool {
		return e.command(t.Context(), "healthcheck", "run", "tranche").Run() == nil
	})
	e.start(t, "interest", &interest, at, "--detach")
	said := strings.Fields(e.run(t, "exec", "tranche", "/usr/bin/tranche", "token", "create", "--database", "env",
		"--name", "me", "--role", "admin"))
	client := func(args ...string) string {
		cmd := command(t.Context(), "dist/image/"+runtime.GOARCH+"/tranche", args...)
		cmd.Env = append(os.Environ(), "TRANCHE_URL=http://127.0.0.1:"+port, "TRANCHE_TOKEN="+said[len(said)-1])
		return output(t, cmd)
	}
	items := filepath.Join(t.TempDir(), "accounts.csv")
	testenv.NoError(t, os.WriteFile(items, []byte("id,balance\nC-1,100.00\nC-2,7.50\nC-3,2000.00\n"), 0o600))
	client("run", "start", "--endpoint", "year-end-interest", "--items", items, "--wait", "--max-wait", "1m")
	testenv.Has(t, client("run", "export", "last", "--format", "csv"), "1.5", "the results")
	testenv.Has(t, client("nodes"), "v0.1.0-test (0123456789ab", "nodes do not say their version")
	e.checkStop(t, "tranche")
	e.checkStop(t, "interest")
}

// checkStop asks a container to end, and looks at how it did and what it has written.
func (e *engine) checkStop(t *testing.T, name string) {
	t.Helper()
	began := time.Now()
	e.run(t, "stop", "--time", fmt.Sprint(killing.Seconds()), name)
	if took := time.Since(began); took > stopping {
		t.Errorf("%s took %s to end", name, took)
	}
	testenv.Same(t, e.run(t, "inspect", "--format", "{{.State.ExitCode}}", name), "0", "exit code of %s:\n%s", name,
		e.run(t, "logs", name))
	// What is mounted has to have a place.
	for line := range strings.Lines(e.run(t, "diff", name)) {
		if word := strings.TrimSpace(line); !mounted(word) {
			t.Errorf("%s has written outside of its volume: %s", name, word)
		}
	}
}

func mounted(change string) bool {
	for _, dir := range []string{"/etc", "/run", "/dev", "/proc", "/sys", "/var/lib/tranche"} {
		if strings.HasSuffix(change, " "+dir) || strings.Contains(change, " "+dir+"/") {
			return true
		}
	}
	return change == ""
}

// checkSize adds up what a registry would have of an image.
func (e *engine) checkSize(t *testing.T, image string) {
	t.Helper()
	dir := t.TempDir()
	e.run(t, "push", "--format", "oci", "--quiet", "localhost/"+image, "oci:"+dir+":x")
	var size int64
	err := filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	if err != nil || size > mostCompressed {
		t.Errorf("%s has %d bytes compressed (%v); at most %d", image, size, err, mostCompressed)
	}
	var config []struct {
		User   string `json:"User"`
		Config struct {
			User string `json:"User"`
		} `json:"Config"`
	}
	if err := json.Unmarshal([]byte(e.run(t, "inspect", "localhost/"+image)), &config); err != nil || len(config) != 1 ||
		config[0].Config.User != "65532:65532" {
		t.Errorf("%s runs as %+v (%v)", image, config, err)
	}
}
