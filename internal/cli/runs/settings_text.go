package runs

import (
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// heldText says why a run is paused, behind its state.
func heldText(hold *client.HoldView, now time.Time) string {
	by := ""
	if hold.By != "" {
		by = " by " + cli.Inert(hold.By)
	}
	text := fmt.Sprintf(" (%s)%s, %s ago", hold.Kind, by, cli.Span(now.Sub(hold.Since)))
	if hold.Detail != "" {
		text += ": " + cli.Inert(hold.Detail)
	}
	return text
}

func maxFailedText(run *client.RunDocument) string {
	text := cli.Inert(run.MaxFailed)
	if run.FailedLimit != nil && strings.HasSuffix(run.MaxFailed, "%") {
		text += fmt.Sprintf(", which is %s items", cli.Count(*run.FailedLimit))
	}
	return text + "; one more pauses the run"
}

func canaryText(canary *client.CanaryView) string {
	text := fmt.Sprintf("%s items", cli.Count(int64(canary.Items)))
	if canary.Auto {
		text += ", then on by itself"
	} else {
		text += ", then waits for approval"
	}
	if canary.State != "" {
		text += ": " + canary.State
	}
	return text
}

// settingsText is the settings of a step in a few short lines.
func settingsText(step *client.StepView) []string {
	s := &step.Settings
	pace := []string{cli.TargetText(step.Endpoint), "chunk " + upTo(s.Chunk, s.ChunkAuto)}
	if s.ChunkBytes > 0 {
		pace = append(pace, cli.Count(int64(s.ChunkBytes))+" bytes a request")
	}
	if s.ChunkTime > 0 {
		pace = append(pace, cli.Span(time.Duration(s.ChunkTime))+" a request")
	}
	pace = append(pace, upTo(s.InFlight, s.InFlightAuto)+" in flight")
	if s.Rate > 0 {
		pace = append(pace, cli.Rate(s.Rate)+" at most")
	}
	retry := []string{fmt.Sprintf("%d attempts", s.MaxAttempts), "backoff " + cli.Span(time.Duration(s.RetryBackoff))}
	if s.MaxBackoff > 0 {
		retry = append(retry, "up to "+cli.Span(time.Duration(s.MaxBackoff)))
	}
	retry = append(retry, fmt.Sprintf("timeout %s", time.Duration(s.Timeout)))
	lines := []string{strings.Join(pace, ", "), strings.Join(retry, ", ")}
	if len(s.RetryCodes) > 0 {
		lines = append(lines, "always retried: "+cli.Inert(strings.Join(s.RetryCodes, ", ")))
	}
	if len(s.NeverRetry) > 0 {
		lines = append(lines, "never retried: "+cli.Inert(strings.Join(s.NeverRetry, ", ")))
	}
	if s.MaxResult > 0 {
		lines = append(lines, "results of at most "+cli.Count(int64(s.MaxResult))+" bytes")
	}
	return lines
}

// upTo writes a limit, and whether nodes find the number below it.
func upTo(n int, auto bool) string {
	if auto {
		return fmt.Sprintf("auto (at most %d)", n)
	}
	return fmt.Sprint(n)
}
