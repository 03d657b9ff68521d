package admin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/collector"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
)

type endpointsSet struct {
	Name        string         `arg:"" help:"The endpoint's name. It need not be known yet."`
	Concurrency *concurrency   `help:"Chunks at once in each instance, 1 to 1024, or default." placeholder:"N"`
	MaxInFlight *requestBudget `help:"Requests at once over all runs, 1 to 10000, or none." placeholder:"N"`
	Rate        *itemRate      `help:"Items a second over all runs, or none." placeholder:"N"`
	CallRate    *callRate      `help:"Requests over all runs and collectors, as 50/m or 10/s, or none." placeholder:"N/m"`
	ChunkCap    *chunkCap      `help:"0 forgets that requests over some size fail as a whole." placeholder:"0"`
	Breaker     *breakerState  `help:"closed says that it is no outage: for 10 minutes failures use up attempts." placeholder:"closed"`
}

func (e *endpointsSet) Validate() error {
	if e.Concurrency == nil && e.MaxInFlight == nil && e.Rate == nil && e.CallRate == nil &&
		e.ChunkCap == nil && e.Breaker == nil {
		return errors.New("say what to set: --concurrency, --max-in-flight, --rate, --call-rate, --chunk-cap 0 or " +
			"--breaker closed")
	}
	return nil
}

// concurrency is a number, or 0 for the service's own.
type concurrency int

func (c *concurrency) UnmarshalText(text []byte) error {
	n, err := limitOr(text, "default", pacestore.MaxEndpointConcurrency)
	*c = concurrency(n)
	return err
}

// requestBudget is a number, or 0 for none.
type requestBudget int

func (b *requestBudget) UnmarshalText(text []byte) error {
	n, err := limitOr(text, "none", pacestore.MaxEndpointInFlight)
	*b = requestBudget(n)
	return err
}

// limitOr reads a number from 1 to most, or a word that means 0.
func limitOr(text []byte, word string, most int) (int, error) {
	if string(text) == word {
		return 0, nil
	}
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("%.100q is not a number from 1 to %d, or %s", text, most, word)
	}
	return n, nil
}

// itemRate is items a second, or 0 for no limit.
type itemRate float64

func (r *itemRate) UnmarshalText(text []byte) error {
	if string(text) == "none" {
		*r = 0
		return nil
	}
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(n >= pacestore.MinEndpointRate && n <= pacestore.MaxEndpointRate) { // so that NaN is refused
		return fmt.Errorf("%.100q is not a number of items a second from %g to %d, or none", text,
			pacestore.MinEndpointRate, pacestore.MaxEndpointRate)
	}
	*r = itemRate(n)
	return nil
}

// callRate is requests a second, or 0 for no limit.
type callRate float64

func (r *callRate) UnmarshalText(text []byte) error {
	if string(text) == "none" {
		*r = 0
		return nil
	}
	n, err := collector.ParseCallRate(string(text))
	if err != nil || n == 0 {
		return fmt.Errorf("%.100q is no rate of requests like 10/s, 50/m or 100/h, nor none", text)
	}
	*r = callRate(n)
	return nil
}

// chunkCap can only be cleared: nodes find it.
type chunkCap int

func (c *chunkCap) UnmarshalText(text []byte) error {
	if string(text) != "0" {
		return fmt.Errorf("%.100q is not 0; nodes find the cap by themselves, and 0 clears it", text)
	}
	return nil
}

// breakerState can only be closed: nodes open the breaker.
type breakerState string

func (b *breakerState) UnmarshalText(text []byte) error {
	if string(text) != string(client.BreakerStateClosed) {
		return fmt.Errorf("%.100q is not closed; nodes open the breaker by themselves, and closed says that it is no outage",
			text)
	}
	*b = breakerState(text)
	return nil
}

// Run changes the settings.
func (e *endpointsSet) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	set, err := cl.SetEndpoint(ctx, e.Name, client.EndpointSettings{Concurrency: (*int)(e.Concurrency),
		MaxInFlight: (*int)(e.MaxInFlight), Rate: (*float64)(e.Rate), CallRate: (*float64)(e.CallRate),
		ChunkCap: (*int)(e.ChunkCap),
		Breaker:  (*string)(e.Breaker)}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("endpoint %s: %s\n", cli.Inert(e.Name), strings.Join(e.told(&set), "; "))
}

// told says what holds now of what was set.
func (e *endpointsSet) told(set *client.EndpointSetting) []string {
	var told []string
	if e.Concurrency != nil {
		told = append(told, concurrencyText(set.Concurrency)+", within seconds")
	}
	if e.MaxInFlight != nil {
		told = append(told, budgetText(set.MaxInFlight))
	}
	if e.Rate != nil {
		told = append(told, rateLimitText(set.Rate))
	}
	if e.CallRate != nil {
		told = append(told, callRateText(set.CallRate))
	}
	if e.ChunkCap != nil {
		told = append(told, "requests may be of any size again")
	}
	if e.Breaker != nil {
		told = append(told, "its breaker is closed, and stays so for 10 minutes: items that fail use up their attempts")
	}
	return told
}

func concurrencyText(n int) string {
	if n == 0 {
		return "concurrency is left to its services"
	}
	return fmt.Sprintf("%d chunks at once in each instance", n)
}

func budgetText(n int) string {
	if n == 0 {
		return "no budget of requests"
	}
	return fmt.Sprintf("at most %s requests at once over all runs", cli.Count(int64(n)))
}

func rateLimitText(perSecond float64) string {
	if perSecond <= 0 {
		return "no rate limit"
	}
	return fmt.Sprintf("at most %s items a second over all runs", cli.Pace(perSecond))
}

func callRateText(perSecond float64) string {
	switch {
	case perSecond <= 0:
		return "no limit of requests a second"
	case perSecond < 1:
		return fmt.Sprintf("at most %s requests a minute in all", strconv.FormatFloat(perSecond*60, 'g', 4, 64))
	}
	return fmt.Sprintf("at most %s requests a second in all", strconv.FormatFloat(perSecond, 'g', 4, 64))
}
