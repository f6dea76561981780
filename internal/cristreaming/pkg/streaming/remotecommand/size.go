// Package remotecommand stands for the package of that name of k8s.io/cri-streaming: the
// sizes of terminals, which clients of commands send.
package remotecommand

// A TerminalSize is how many characters a terminal has.
type TerminalSize struct {
	Width  uint16
	Height uint16
}
