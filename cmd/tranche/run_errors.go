package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tranchehq/tranche/internal/api"
)

type runErrors struct {
	Ref string `arg:"" name:"run" help:"An id, the beginning of one, a name, or last."`
	All bool   `help:"Every failed item instead of groups."`
}

// Run shows what failed.
func (r *runErrors) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	if r.All {
		stream, err := cl.FailedItems(ctx, r.Ref)
		if err != nil {
			return err
		}
		defer func() { _ = stream.Close() }()
		return r.all(term, stream)
	}
	groups, err := cl.Errors(ctx, r.Ref)
	if err != nil {
		return err
	}
	if term.json {
		return term.document(groups)
	}
	return term.printf("%s", errorText(groups, term.columns))
}

func errorText(found api.ErrorGroups, columns int) string {
	if len(found.Groups) == 0 {
		return "no failed items\n"
	}
	var text strings.Builder
	for _, g := range found.Groups {
		fmt.Fprintf(&text, "%s  %s  (step %s)\n", count(g.Count), short(inert(g.Code), 60), inert(g.Step))
		for _, e := range g.Examples {
			line := fmt.Sprintf("    %s  %s", short(inert(e.Key), 30), inert(e.Message))
			text.WriteString(short(line, max(columns, 40)) + "\n")
		}
		if more := g.Count - int64(len(g.Examples)); more > 0 {
			fmt.Fprintf(&text, "    and %s more\n", count(more))
		}
	}
	return text.String() +
		fmt.Sprintf("\nrun them again with: tranche run rerun %s --failed\n", shortID(found.Run.String()))
}

// all copies the stream, as it is for JSON, a line for each item otherwise.
func (r *runErrors) all(term *console, stream io.Reader) error {
	if term.json {
		return copyStream(term.out, stream)
	}
	decoder := json.NewDecoder(stream)
	out := bufio.NewWriter(term.out)
	for {
		var item api.ExportedItem
		err := decoder.Decode(&item)
		if errors.Is(err, io.EOF) {
			return out.Flush()
		}
		if err != nil {
			return errors.Join(brokenOff(err), out.Flush())
		}
		if item.Error == nil {
			continue
		}
		_, err = fmt.Fprintf(out, "%s\t%s\t%s\n", inert(item.Key), inert(item.Error.Code), inert(item.Error.Message))
		if err != nil {
			return fmt.Errorf("write to standard output: %w", err)
		}
	}
}

func copyStream(to io.Writer, from io.Reader) error {
	if _, err := io.Copy(to, from); err != nil {
		return brokenOff(err)
	}
	return nil
}

func brokenOff(err error) error {
	return fmt.Errorf("the export broke off and is not whole; ask again: %w", err)
}
