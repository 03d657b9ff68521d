//go:build !linux && !darwin

package health

// spaceAt is for systems that can be asked.
func spaceAt(string) *diskSpace { return nil }
