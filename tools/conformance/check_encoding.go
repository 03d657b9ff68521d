package conformance

import (
	"bytes"
	"context"

	"github.com/tranchehq/tranche/endpoints/wire"
)

func encodingChecks() []check {
	return []check{
		{"zstd", "a compressed request: a frame with its size, and one of a stream", "Sizes", 0, checkZstd},
		{"zstd-frames", "a request in several zstd frames", "Sizes", 0, checkZstdFrames},
		{"zstd-bomb", "a request that decompresses to over 16 MiB is refused", "Sizes", 0, checkZstdBomb},
	}
}

func checkZstd(ctx context.Context, n *node) error {
	for _, how := range []func([]byte) []byte{compress, compressStream} {
		r := n.sample(100)
		r.body = how(r.body)
		r.header.Set(wire.HeaderEncoding, "zstd")
		if err := n.wholly(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func checkZstdFrames(ctx context.Context, n *node) error {
	r := n.sample(100)
	third := len(r.body) / 3
	r.body = bytes.Join([][]byte{
		compress(r.body[:third]), compressStream(r.body[third : 2*third]), compress(r.body[2*third:]),
	}, nil)
	r.header.Set(wire.HeaderEncoding, "zstd")
	return n.wholly(ctx, r)
}

func checkZstdBomb(ctx context.Context, n *node) error {
	r := n.sample(1)
	r.body = compressStream(append(bytes.Repeat([]byte(" "), 17<<20), r.body...))
	r.header.Set(wire.HeaderEncoding, "zstd")
	return n.refused(ctx, r)
}
