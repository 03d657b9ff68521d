package wire

// Headers of a suspended chunk's messages, beside those of the request that began the flow.
const (
	HeaderFlowParts    = "Tranche-Flow-Parts"    // how many messages the state takes
	HeaderFlowWrite    = "Tranche-Flow-Write"    // the same on all messages of one state
	HeaderFlowAnswered = "Tranche-Flow-Answered" // items that the asker has been answered by then
	HeaderFlowTotal    = "Tranche-Flow-Total"    // items that the asker asked for
	HeaderFlowBegun    = "Tranche-Flow-Begun"    // when the work on the chunk began, in milliseconds since 1970
	HeaderFlowAsks     = "Tranche-Flow-Asks"     // the endpoints that were asked, for nodes
	HeaderFlowDone     = "Tranche-Flow-Done"     // on what takes the place of a state that is no longer needed
)
