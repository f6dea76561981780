package scheduler

import "context"

// makeRoom tries to find pods whose going would let the pod in.
func (s *term) makeRoom(ctx context.Context, q *queued, why *refusal) (nominate *string) {
	why.after = "no new claims to deallocate"
	return nil
}
