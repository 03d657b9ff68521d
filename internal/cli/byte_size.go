package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ByteSize is a number of bytes as a setting has it: 512MiB, 2GiB, or just digits. Zero means the default.
type ByteSize int64

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *ByteSize) UnmarshalText(text []byte) error {
	digits, shift := string(text), 0
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if number, ok := strings.CutSuffix(digits, unit); ok {
			digits, shift = number, 10*(i+1)
			break
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64>>shift {
		return fmt.Errorf("%q is not a size, like 512MiB, 2GiB or a number of bytes", text)
	}
	*b = ByteSize(n << shift)
	return nil
}
