package server

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// checkpoint has a container's state written to the node's disk, and answers where.
func (s *server) checkpoint(w http.ResponseWriter, r *http.Request) {
	t := Target{Namespace: r.PathValue("ns"), Pod: r.PathValue("pod"), Container: r.PathValue("container")}
	var timeout int64
	if all := r.URL.Query()["timeout"]; len(all) > 0 { // the last one counts
		var err error
		if timeout, err = strconv.ParseInt(all[len(all)-1], 10, 64); err != nil {
			writeError(w, NotFound("cannot parse value of timeout parameter"))
			return
		}
	}
	path, err := s.host.Checkpoint(r.Context(), t, timeout)
	if err != nil {
		if e := (Error{}); !errors.As(err, &e) {
			err = fmt.Errorf("checkpointing of %s/%s/%s failed (%w)", t.Namespace, t.Pod, t.Container, err)
		}
		writeError(w, err)
		return
	}
	writeJSON(w, map[string][]string{"items": {path}})
}
