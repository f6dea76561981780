// Package need skips tests that this machine cannot run. It reads KNARR_MUST_RUN,
// which make test sets as root: what make test itself provides for then fails
// instead of passing unseen.
package need

import "os"

// A test is what need wants of *testing.T and *testing.B.
type test interface {
	Helper()
	Fatal(...any)
	Skip(...any)
}

// Root is for tests of the kernel.
func Root(t test) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "needs root: sudo go test")
	}
}

// Skip says what is missing and how to get it.
func Skip(t test, why ...any) {
	t.Helper()
	if os.Getenv("KNARR_MUST_RUN") != "" {
		t.Fatal(append([]any{"KNARR_MUST_RUN is set: "}, why...)...)
	}
	t.Skip(why...)
}
