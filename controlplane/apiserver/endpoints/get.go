package endpoints

import (
	"net/http"
)

// get answers with one object.
func (c *call) get() error {
	var err error
	if c.out, err = c.negotiate(false); err != nil {
		return err
	}
	version := ""
	if c.r.URL.RawQuery != "" {
		version = c.query().Get("resourceVersion")
	}
	rec, err := c.store.Get(c.ctx, c.key(), version)
	if err != nil {
		return c.fromCache(err, c.info.Name)
	}
	if c.sub != nil && c.sub.GetScale != nil {
		return c.writeScale(http.StatusOK, rec)
	}
	return c.writeRecord(http.StatusOK, rec)
}
