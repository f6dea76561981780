package need

import "testing"

type said struct{ fatal, skip int }

func (*said) Helper()        {}
func (s *said) Fatal(...any) { s.fatal++ }
func (s *said) Skip(...any)  { s.skip++ }

func TestSkip(t *testing.T) {
	for must, want := range map[string]said{"": {skip: 1}, "1": {fatal: 1, skip: 1}} {
		t.Setenv("KNARR_MUST_RUN", must)
		var got said
		Skip(&got, "why")
		if want.fatal != got.fatal || must == "" && got.skip != 1 {
			t.Errorf("KNARR_MUST_RUN=%q: %+v", must, got)
		}
	}
}
