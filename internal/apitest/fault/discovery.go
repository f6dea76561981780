package fault

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
)

// Unavailable answers every second question to discovery with an error, while on.
func Unavailable(on *atomic.Bool) func(*http.Request, *http.Response) *http.Response {
	var asked atomic.Int64
	return func(req *http.Request, resp *http.Response) *http.Response {
		if !on.Load() || asked.Add(1)%2 == 0 {
			return resp
		}
		resp.Body.Close()
		return answer(req, http.StatusServiceUnavailable,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"the server is currently unable to handle the request","reason":"ServiceUnavailable","code":503}`)
	}
}

// Without leaves groups out of every second document of discovery, while on.
func Without(on *atomic.Bool, groups ...string) func(*http.Request, *http.Response) *http.Response {
	var asked atomic.Int64
	return func(req *http.Request, resp *http.Response) *http.Response {
		if !on.Load() || req.URL.Path != "/apis" || asked.Add(1)%2 == 0 {
			return resp
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		var doc map[string]any
		if err != nil || json.Unmarshal(body, &doc) != nil {
			return resp
		}
		for _, key := range []string{"items", "groups"} {
			if list, ok := doc[key].([]any); ok {
				doc[key] = slices.DeleteFunc(list, func(o any) bool {
					return slices.ContainsFunc(groups, func(g string) bool {
						return strings.Contains(fmt.Sprint(o), "name:"+g+" ") || strings.Contains(fmt.Sprint(o), "name:"+g+"]")
					})
				})
			}
		}
		if body, err = json.Marshal(doc); err != nil {
			return resp
		}
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		resp.Header.Del("Content-Length")
		return resp
	}
}
