//go:build !linux && !darwin

package health

// spaceAt returns nil: unsupported here.
func spaceAt(string) *diskSpace { return nil }
