package endpoints

// Headers of a suspended chunk's messages, beside those of the request that began the flow.
const (
	headerFlowParts    = "Tranche-Flow-Parts"    // how many messages the state takes
	headerFlowWrite    = "Tranche-Flow-Write"    // the same on all messages of one state
	headerFlowAnswered = "Tranche-Flow-Answered" // items that the asker has been answered by then
	headerFlowTotal    = "Tranche-Flow-Total"    // items that the asker asked for
	headerFlowBegun    = "Tranche-Flow-Begun"    // when the work on the chunk began, in milliseconds since 1970
	headerFlowAsks     = "Tranche-Flow-Asks"     // the endpoints that were asked, for nodes
	headerFlowDone     = "Tranche-Flow-Done"     // on what takes the place of a state that is no longer needed
)
