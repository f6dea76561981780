package endpoints

import "net/http"

// openAPI serves the schemas of all kinds.
type openAPI struct{}

func (o *openAPI) serve(w http.ResponseWriter, r *http.Request, _ string) { http.NotFound(w, r) }
