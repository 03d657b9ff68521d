package wire

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// NATSURLName is the file in a node's data directory with the address and password of its NATS server, for services
// of the same user.
const NATSURLName = "nats-url"

// DefaultDataDir returns the default data directory of a node: /var/lib/tranche for root, else tranche in the user's
// data directory.
func DefaultDataDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/tranche", nil
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "tranche"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find a data directory: %w; name one with --data-dir", err)
	}
	if runtime.GOOS == "darwin" {
		return filepath.Join(home, "Library", "Application Support", "tranche"), nil
	}
	return filepath.Join(home, ".local", "share", "tranche"), nil
}
