package fault

import "fmt"

// A Disturbance is what happens to a process in one run of a story.
type Disturbance struct {
	StopAt    int    // the process ends at its write of that number
	Unsent    bool   // which does not reach the server
	Lag       string // watches of that resource are behind
	Expire    bool   // and then too old
	AnewAt    int    // the story's object is made anew before that write
	HurryAt   int    // the next step is taken before that write
	Discovery string // what discovery does: unavailable, partial
}

// String names it, as a test's name.
func (d Disturbance) String() string {
	switch {
	case d.StopAt > 0 && d.Unsent:
		return fmt.Sprintf("stopped before write %d", d.StopAt)
	case d.StopAt > 0:
		return fmt.Sprintf("stopped after write %d", d.StopAt)
	case d.Expire:
		return "watches of " + d.Lag + " expire"
	case d.Lag != "":
		return "watches of " + d.Lag + " lag"
	case d.AnewAt > 0:
		return fmt.Sprintf("made anew at write %d", d.AnewAt)
	case d.HurryAt > 0:
		return fmt.Sprintf("next step at write %d", d.HurryAt)
	case d.Discovery != "":
		return "discovery is " + d.Discovery
	}
	return "undisturbed"
}
