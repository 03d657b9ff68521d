package api

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/runs"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
)

// aliases are the types that the document describes as others, since in JSON they take more than text.
func aliases(registry huma.Registry) {
	registry.RegisterTypeAlias(kernel.TypeOf[workqueue.Adaptive](), kernel.TypeOf[runs.Sizing]())
	registry.RegisterTypeAlias(kernel.TypeOf[workqueue.Bytes](), kernel.TypeOf[byteSize]())
	registry.RegisterTypeAlias(kernel.TypeOf[collector.Span](), kernel.TypeOf[spanText]())
}

// spanText tells huma of workqueue.Span.
type spanText struct{}

// Schema tells of its text.
func (spanText) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: "a time like 90s or 1h30m", Examples: []any{"1m30s"}}
}

// byteSize tells huma of workqueue.Bytes.
type byteSize struct{}

// Schema tells of both forms.
func (byteSize) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeInteger}, {Type: huma.TypeString}},
		Description: "a number of bytes, or a text like 512KiB", Examples: []any{65536, "512KiB"}}
}
