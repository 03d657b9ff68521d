package cli

import "testing"

func TestByteSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ByteSize{
		"1": 1, "5KiB": 5 << 10, "64MiB": 64 << 20, "2 GiB": 2 << 30, "3TiB": 3 << 40,
	} {
		var b ByteSize
		if err := b.UnmarshalText([]byte(text)); err != nil || b != want {
			t.Errorf("%q is %d, %v; want %d", text, b, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "GiB", "1GB", "9999999999TiB", "1.5GiB"} {
		var b ByteSize
		if err := b.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken for %d", text, b)
		}
	}
}
