package kernel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// Known is what a caller has already.
type Known struct {
	IfNoneMatch []string `header:"If-None-Match" doc:"the ETag of what the caller has: 304 when it is still the same"`
}

func (k *Known) known() []string { return k.IfNoneMatch }

// taggedAnswer is an answer that says by which tag it is known.
type taggedAnswer[T any] struct {
	Status int
	ETag   string `header:"ETag"`
	Body   T
}

// RegisterTagged is register for documents that callers ask for again and again. tag is the ETag of one.
func RegisterTagged[In, Out any](
	k *Kernel, api huma.API, op huma.Operation, handle func(ctx context.Context, in *In) (Out, error),
	known func(*In) *Known, tag func(*Out) (string, error),
) {
	op.Responses = map[string]*huma.Response{"304": {Description: "It is as the caller knows it."}}
	huma.Register(api, op, func(ctx context.Context, in *In) (*taggedAnswer[Out], error) {
		ctx, cancel := k.Looking(ctx)
		defer cancel()
		out, err := handle(ctx, in)
		if err != nil {
			return nil, k.Failure(ctx, err)
		}
		answer := &taggedAnswer[Out]{Status: http.StatusOK, Body: out}
		if answer.ETag, err = tag(&out); err != nil {
			return nil, k.Failure(ctx, err)
		}
		if matches(known(in).known(), answer.ETag) {
			answer.Status = http.StatusNotModified
		}
		return answer, nil
	})
}

// matches compares tags as If-None-Match does: whether they are weak does not matter.
func matches(known []string, tag string) bool {
	for _, list := range known {
		for one := range strings.SplitSeq(list, ",") {
			one = strings.TrimSpace(one)
			if one == "*" || strings.TrimPrefix(one, "W/") == strings.TrimPrefix(tag, "W/") {
				return true
			}
		}
	}
	return false
}

// PrintOf is a fingerprint of a document.
func PrintOf(doc any) (string, error) {
	text, err := json.Marshal(doc)
	if err != nil {
		return "", err //nolint:wrapcheck // names what cannot be written
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12]), nil
}
