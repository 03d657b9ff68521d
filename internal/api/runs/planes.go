package runs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/klauspost/compress/gzhttp"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

const mimeBinary = "application/octet-stream"

type planesInput struct {
	kernel.RunPath
	Step   string `query:"step" doc:"its name; absent: the items over all steps"`
	Layer  string `query:"layer" enum:"state,attempts,latency,age" default:"state" doc:"what the bytes say"`
	From   int32  `query:"from" minimum:"0" maximum:"262143" doc:"the first block: ordinal 8192·from"`
	Blocks int    `query:"blocks" minimum:"1" maximum:"128" default:"128" doc:"how many blocks"`
}

func (s *Routes) registerPlanes(api huma.API) {
	op := kernel.Broad(kernel.Get("get-planes", "/runs/{run}/planes", "Items as bytes, for a picture of all of them"))
	op.Description = "One byte for each item, in the order of their ordinals, from that of the first block on; a block " +
		"has 8192 items, and the last one of a run ends with its items. Blocks behind the last item are left out, so " +
		"the answer may be empty.\n\n" +
		"- state: 0 waiting for a step before, or to be loaded; 1 held back by a canary; 2 ready; 3 to be tried again " +
		"later; 4 in flight; 5 done; 6 failed; 7 left out; 8 done, and what it was made from is being made again.\n" +
		"- attempts: how often the item was asked for since it was last ready, up to 255.\n" +
		"- latency: of the request that brought its outcome: 0 for none, else 1+12·log2(1+milliseconds), rounded, up to " +
		"255.\n" +
		"- age: since the item last moved, in seconds, in the same code.\n\n" +
		"Over all steps an item has failed if it has at a step that is not optional, and is done when it has come to its " +
		"end at all; else it shows the step that is furthest. Attempts and latency are the highest of its steps, and the " +
		"age is that of its latest move. To follow a run, open its events first, then ask for this, then apply what the " +
		"events say."
	op.Responses = planesResponses()
	huma.Register(api, op, s.getPlanes)
}

func planesResponses() map[string]*huma.Response {
	header := func(text string) *huma.Param {
		return &huma.Param{Description: text, Schema: &huma.Schema{Type: huma.TypeInteger}}
	}
	return map[string]*huma.Response{
		"200": {
			Description: "The bytes; in gzip for who accepts it.",
			Headers: map[string]*huma.Param{
				"Tranche-Items":  header("how many items the run has"),
				"Tranche-Blocks": header("how many blocks that is"),
				"ETag":           {Description: "of the bytes", Schema: &huma.Schema{Type: huma.TypeString}},
			},
			Content: map[string]*huma.MediaType{mimeBinary: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}},
		},
		"304": {Description: "They are those of the ETag in If-None-Match."},
	}
}

func (s *Routes) getPlanes(ctx context.Context, in *planesInput) (*huma.StreamResponse, error) {
	look, cancel := s.Looking(ctx)
	defer cancel()
	planes, err := s.readPlanes(look, in)
	if err != nil {
		return nil, s.Failure(look, err)
	}
	return planesAnswer(planes), nil
}

// planesAnswer answers with bytes for items.
func planesAnswer(planes *inspect.Planes) *huma.StreamResponse {
	sum := sha256.Sum256(planes.Bytes)
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		header := w.Header()
		header.Set("Content-Type", mimeBinary)
		header.Set("Cache-Control", "private, no-cache") // to be kept, and asked for each time
		header.Set("Tranche-Items", strconv.FormatInt(planes.Items, 10))
		header.Set("Tranche-Blocks", strconv.Itoa(planes.Blocks))
		header.Set("ETag", `W/"`+hex.EncodeToString(sum[:12])+`"`) // weak: of the bytes, zipped or not
		gzhttp.GzipHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(planes.Bytes))
		})).ServeHTTP(w, r)
	}}
}

func (s *Routes) readPlanes(ctx context.Context, in *planesInput) (*inspect.Planes, error) {
	id, err := inspect.New(s.Store).Resolve(ctx, in.Run)
	if err != nil {
		return nil, err
	}
	planes, err := inspect.New(s.Store).Planes(ctx, inspect.PlanesRequest{
		Run: id, Step: in.Step, Layer: inspect.Layer(in.Layer), From: workqueue.Block(in.From), Blocks: in.Blocks,
	})
	return planes, kernel.Seen(err, "tranche run show "+id.String())
}
