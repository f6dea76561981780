package need

import "testing"

type messages struct{ fatal, skip int }

func (*messages) Helper()        {}
func (s *messages) Fatal(...any) { s.fatal++ }
func (s *messages) Skip(...any)  { s.skip++ }

func TestSkip(t *testing.T) {
	for must, want := range map[string]messages{"": {skip: 1}, "1": {fatal: 1, skip: 1}} {
		t.Setenv("KNARR_MUST_RUN", must)
		var got messages
		Skip(&got, "why")
		if want.fatal != got.fatal || must == "" && got.skip != 1 {
			t.Errorf("KNARR_MUST_RUN=%q: %+v", must, got)
		}
	}
}
