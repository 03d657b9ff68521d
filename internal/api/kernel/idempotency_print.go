package kernel

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"mime"
	"net/http"

	"github.com/tranchehq/tranche/workqueue/session"
)

// printedBody takes the fingerprint of a body while it is read. The boundary of a multipart body, which clients choose
// anew when they send the same again, is no part of it.
type printedBody struct {
	io.ReadCloser

	head     []byte // of what is known without the body
	boundary []byte
	sum      hash.Hash
	held     []byte // the end of what was read, which may be the beginning of a boundary
	read     uint64 // bytes of the fingerprint
	limit    uint64 // of them, when they are compared; 0: none
	whole    bool
}

func newPrintedBody(r *http.Request) *printedBody {
	b := &printedBody{ReadCloser: r.Body, sum: sha256.New()}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err == nil && kind == "multipart/form-data" && params["boundary"] != "" {
		b.boundary = []byte(params["boundary"])
	} else {
		kind = r.Header.Get("Content-Type")
	}
	head := sha256.Sum256([]byte(kind + "\x00" + sortedQuery(r.URL.Query())))
	b.head = head[:]
	return b
}

func (b *printedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.add(p[:n])
	if err == io.EOF && !b.whole {
		b.whole = true
		b.write(b.held)
		b.held = nil
	}
	return n, err
}

func (b *printedBody) add(p []byte) {
	if len(b.boundary) == 0 {
		b.write(p)
		return
	}
	b.held = append(b.held, p...)
	for {
		at := bytes.Index(b.held, b.boundary)
		if at < 0 {
			break
		}
		b.write(b.held[:at])
		b.held = b.held[at+len(b.boundary):]
	}
	if safe := len(b.held) - len(b.boundary) + 1; safe > 0 {
		b.write(b.held[:safe])
		b.held = append(b.held[:0:0], b.held[safe:]...)
	}
}

func (b *printedBody) write(p []byte) {
	if left := b.limit - b.read; b.limit > 0 && uint64(len(p)) > left {
		p = p[:left]
	}
	b.read += uint64(len(p))
	_, _ = b.sum.Write(p) // a hash takes everything
}

// fingerprint is that of what was read: all of the body, unless the request needed less of it.
func (b *printedBody) fingerprint() []byte {
	out := binary.BigEndian.AppendUint64(bytes.Clone(b.head), b.read)
	if b.whole {
		out = append(out, 1)
	} else {
		out = append(out, 0)
	}
	return b.sum.Sum(out)
}

// matches reads the body as far as another was read, and reports whether the two are the same.
func (b *printedBody) matches(other []byte) (bool, error) {
	const begin = sha256.Size
	if !bytes.HasPrefix(other, b.head) {
		return false, nil
	}
	if len(other) != begin+8+1+sha256.Size { // it has no answer yet, so it is not known how it goes on
		return true, nil
	}
	whole, most := other[begin+8] == 1, binary.BigEndian.Uint64(other[begin:])
	if !whole {
		b.limit = most
	}
	buffer := make([]byte, 32<<10)
	for whole || b.read < most {
		if _, err := b.Read(buffer); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return false, err
		}
	}
	b.whole = b.whole && whole // where less was needed of the other, it does not matter how this one ends
	return bytes.Equal(b.fingerprint(), other), nil
}

// keptWriter holds an answer back, so that it can be kept before it is sent. One that is too large goes out at once.
type keptWriter struct {
	to      http.ResponseWriter
	code    int
	body    bytes.Buffer
	flowing bool // the body was too large to be kept
}

func (k *keptWriter) Header() http.Header { return k.to.Header() }

func (k *keptWriter) WriteHeader(status int) {
	if k.code == 0 {
		k.code = status
	}
}

func (k *keptWriter) Write(p []byte) (int, error) {
	if k.code == 0 {
		k.code = http.StatusOK
	}
	if !k.flowing && k.body.Len()+len(p) <= maxKeptAnswer {
		return k.body.Write(p)
	}
	if !k.flowing {
		k.flowing = true
		k.to.WriteHeader(k.code)
		if _, err := k.to.Write(k.body.Bytes()); err != nil { //nolint:gosec // the handler's answer, as it is
			return 0, err
		}
	}
	return k.to.Write(p)
}

// Unwrap is for http.ResponseController.
func (k *keptWriter) Unwrap() http.ResponseWriter { return k.to }

func (k *keptWriter) status() int {
	if k.code == 0 {
		return http.StatusOK
	}
	return k.code
}

// answer is what is kept.
func (k *keptWriter) answer() *session.Answer {
	a := &session.Answer{Status: k.status(), ContentType: k.Header().Get("Content-Type"),
		Headers: map[string]string{}, Body: k.body.Bytes()}
	for _, name := range []string{locationHeader, "ETag"} {
		if value := k.Header().Get(name); value != "" {
			a.Headers[name] = value
		}
	}
	if k.flowing {
		a.Headers[truncatedHeader], a.Body = "true", nil
	}
	return a
}

// send sends what was held back.
func (k *keptWriter) send() {
	if k.flowing {
		return
	}
	k.to.WriteHeader(k.status())
	_, _ = k.to.Write(k.body.Bytes()) // the caller is gone when this fails
}
