package conformance

// Level says how much depends on a check.
type Level string

// The levels. What a service must do, others' work depends on.
const (
	Must   Level = "must"
	Should Level = "should"
	May    Level = "may"
)

// levels are from the strictest on.
func levels() []Level { return []Level{Must, Should, May} }

// demand is how much depends on a check, and what users notice of a service that fails it.
type demand struct {
	level  Level
	notice string
}

func demands() map[string]demand {
	return map[string]demand{
		"list":             {Must, "items without a slot are asked for again and again, until they have failed"},
		"ordinals":         {Must, "answers are of other items, or in quarantine"},
		"keys":             {Must, "requests with such keys are never answered"},
		"params":           {Should, "parameters of runs do not reach the handler"},
		"unknown":          {Must, "after an upgrade of the nodes no request is answered"},
		"headers":          {Must, "every reply is in quarantine, and the run stands"},
		"traceparent":      {May, "traces end at the service"},
		"readable":         {Must, "replies are in quarantine, and their items wait for the deadline"},
		"final":            {Must, "items that were left out wait for the deadline, or are asked for twice"},
		"took":             {Should, "nodes find out less well how many requests are good"},
		"message-ids":      {Must, "the answer to a request that is delivered again is dropped as a duplicate"},
		"zstd":             {May, "requests of callers that compress are not answered; nodes never do"},
		"zstd-frames":      {May, "as above, of callers that stream"},
		"zstd-bomb":        {May, "one request of a caller can take all of the service's memory"},
		"reply-to-stage":   {Must, "flows that ask this endpoint wait until their deadline"},
		"reply-to-call":    {Must, "calls of this endpoint run out of time"},
		"reply-to-refused": {Must, "a request can make the service publish wherever it may"},
		"acknowledged":     {Must, "each request is delivered and done up to 20 times"},
		"stored-first":     {Must, "answers are lost when a stream is full or the service is killed, until the deadline"},
		"bad-body":         {Must, "an unreadable request is delivered until it is buried, and its items wait"},
		"bad-headers":      {Should, "such a message is delivered up to 20 times, and replies to it are in quarantine"},
		"version":          {Should, "while nodes of two versions run, requests of the newer one fail"},
		"redelivered":      {Must, "what another instance could not do is never done"},
		"deliveries":       {Should, "a request that kills the service is given up after 20 deliveries instead of 12"},
		"late":             {Should, "on replicated NATS requests rest for 15 s at the end of a pull"},
		"discovery":        {Should, "nodes do not list it, say that nobody listens, and pace by less"},
		"lane-true":        {Must, "calls of this endpoint run out of time: nobody reads where they are told to go"},
		"lane":             {Should, "whoever calls waits behind all chunks of a run: seconds, on a website too"},
		"results":          {Must, "results are recorded other than the handler made them"},
		"error-slots":      {Must, "failures look like results, or what would pass is given up"},
		"missing":          {Must, "items that nobody answered count as done, or wait for the deadline"},
		"twice":            {Should, "the later of two answers may count"},
		"partial":          {May, "results come when the chunk is done, and are lost with it"},
		"binary":           {Should, "files are damaged, or come without their type"},
		"parts":            {Should, "it cannot serve steps that need others"},
		"fail-chunk":       {Should, "a database that is down fails item by item, for good"},
		"big":              {Should, "chunks whose results are together over max_payload fail, and are halved"},
		"pieces":           {May, "results over max_payload fail, each by itself"},
		"too-large":        {Should, "one result that is too large costs its whole chunk"},
		"in-progress":      {Should, "chunks of over 15 s are given to a second instance as well"},
		"delivered-twice":  {Should, "such chunks are answered twice"},
		"consumer":         {Must, "the nodes' settings of the consumer are fought over"},
		"streams-anew":     {Must, "after streams were lost it is deaf until somebody restarts it"},
		"made-anew":        {Should, "after streams were lost a new request may be removed unseen, until its deadline"},
		"drain":            {Should, "at each stop or deployment the chunks in hand rest for 15 s"},
	}
}
