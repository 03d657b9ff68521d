package erasure

import (
	"bytes"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// What is compressed is read as far as services read, however much it claims to hold.
func TestUnpackingIsBounded(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	enc, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if _, err := enc.Write(make([]byte, maxUnpacked)); err != nil {
			t.Fatal(err)
		}
	}
	if err := enc.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(unpacked(packed.Bytes())); n != maxUnpacked {
		t.Errorf("%d bytes of %d were unpacked, at most %d should be", n, packed.Len(), maxUnpacked)
	}
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
