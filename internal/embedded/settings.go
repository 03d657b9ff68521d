package embedded

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	settingsFile = "tranche.conf" // in the cluster; ours
	operatorFile = "local.conf"   // in the cluster; wins over ours
)

// settings are what a fresh cluster of a batch system wants on a small machine. The log leaves out statements and
// failing rows, because those hold payloads.
func (a address) settings() map[string]string {
	s := map[string]string{
		"port":                         strconv.Itoa(a.port),
		"listen_addresses":             "",
		"unix_socket_directories":      "",
		"unix_socket_permissions":      "0700",
		"max_connections":              "100",
		"shared_buffers":               "256MB",
		"min_wal_size":                 "256MB",
		"max_wal_size":                 "4GB",
		"wal_compression":              "on",
		"checkpoint_timeout":           "15min",
		"checkpoint_completion_target": "0.9",
		"random_page_cost":             "1.1",
		"jit":                          "off",
		"timezone":                     "UTC",
		"log_timezone":                 "UTC",
		"log_destination":              "stderr",
		"logging_collector":            "off",
		"log_line_prefix":              "%m [%p] ",
		"log_checkpoints":              "off",
		"log_error_verbosity":          "terse",
		"log_min_error_statement":      "panic",
	}
	if a.socketDir == "" {
		s["listen_addresses"] = "127.0.0.1"
	} else {
		// The setting is a list; an entry in quotes may hold a comma.
		s["unix_socket_directories"] = `"` + strings.ReplaceAll(a.socketDir, `"`, `""`) + `"`
	}
	return s
}

var settingName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_.]*$`)

func checkSettings(settings map[string]string) error {
	for name := range settings {
		if !settingName.MatchString(name) {
			return fmt.Errorf("settings: %q is not the name of a PostgreSQL setting", name)
		}
	}
	return nil
}

// writeSettings replaces our part of the cluster's configuration. The caller's settings win over ours.
func (l layout) writeSettings(ctx context.Context, in Install, a account, at address, extra map[string]string) error {
	path := filepath.Join(l.cluster, settingsFile)
	// The probes below read the configuration too; a bad setting of an earlier start must not spoil them.
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	if err := a.give(path); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	settings := at.settings()
	for _, name := range []string{"wal_compression", "default_toast_compression"} {
		if l.accepts(ctx, in, a, name, "lz4") {
			settings[name] = "lz4"
		}
	}
	maps.Copy(settings, extra)
	var text strings.Builder
	fmt.Fprintf(&text, "# Written by tranche at every start. Put settings of your own in %s.\n", operatorFile)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = %s\n", name, quote(settings[name]))
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}

// quote writes a value as the configuration file wants it.
func quote(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`, "\n", " ").Replace(value) + "'"
}

// accepts asks the server whether it was built to take the value.
func (l layout) accepts(ctx context.Context, in Install, a account, name, value string) bool {
	cmd := exec.CommandContext(ctx, in.program("postgres"), "-D", l.cluster, "-C", name, "-c", name+"="+value)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = l.dir, serverEnv(), a.attributes()
	return cmd.Run() == nil
}
