module github.com/moby/spdystream

go 1.26.0
