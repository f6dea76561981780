// Package request parses API requests. It reads the URL and the
// method, and keeps in the request's context what the filters and handlers
// share: the parsed request, the user, the audit notes and the warnings.
package request
