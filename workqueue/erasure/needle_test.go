package erasure

import (
	"bytes"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// What is compressed is read as far as services read, however much it claims to hold.
func TestUnpackingIsBounded(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	enc := testenv.Must(zstd.NewWriter(&packed))(t)
	for range 4 {
		testenv.Must(enc.Write(make([]byte, maxUnpacked)))(t)
	}
	testenv.NoError(t, enc.Close())
	testenv.Same(t, len(unpacked(packed.Bytes())), maxUnpacked, "bytes that were unpacked of %d", packed.Len())
}

// A form writes a space as a plus, which alone shows no escape.
func TestAKeyStandsInAForm(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"GET /q?name=Zoe+Muster&x=1", `{"name":"Zoe Muster"}`, "Zoe%20Muster"} {
		if !needle("Zoe Muster").in([]byte(text), maxNested) {
			t.Errorf("it is not found in %s", text)
		}
	}
	if needle("Zoe Muster").in([]byte("Zoe+Musterfrau"), maxNested) {
		t.Error("another word has it")
	}
}
