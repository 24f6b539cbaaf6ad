package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
)

// Engine is the one call that [Load] makes; [client.Client] has it.
type Engine interface {
	ImageLoad(ctx context.Context, archive io.Reader, options ...client.ImageLoadOption) (image.LoadResponse, error)
}

// Load sends images to the engine, which then knows them by their tags. A tag that was there before moves. Others may load
// the same at the same time.
func Load(ctx context.Context, engine Engine, imgs ...Image) error {
	for left := loadTries; ; left-- {
		err := load(ctx, engine, imgs)
		if err == nil || left == 1 || ctx.Err() != nil || !strings.Contains(err.Error(), "AlreadyExists") {
			return err
		}
	}
}

// loadTries are as many as may meet another one's at the moment in which an engine on containerd's image store gives the
// tag: it looks for that, and then makes it, and one of two fails.
const loadTries = 10

func load(ctx context.Context, engine Engine, imgs []Image) error {
	archive, w := io.Pipe()
	written := make(chan struct{})
	go func() {
		defer close(written)
		w.CloseWithError(WriteArchive(w, imgs...))
	}()
	defer func() {
		// This ends the writer, also where the engine gave up before the end of the stream.
		archive.Close()
		<-written
	}()
	response, err := engine.ImageLoad(ctx, archive, client.ImageLoadWithQuiet(true))
	if err != nil {
		return fmt.Errorf("load images into the engine: %w", err)
	}
	defer response.Body.Close()
	// The engine has said 200 before it reads the archive: what went wrong stands in the body.
	messages := json.NewDecoder(response.Body)
	for {
		var message struct{ Error string }
		switch err := messages.Decode(&message); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("load images into the engine: read its answer: %w", err)
		case message.Error != "":
			return fmt.Errorf("load images into the engine: %s", message.Error)
		}
	}
}
