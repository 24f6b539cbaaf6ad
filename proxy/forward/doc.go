package forward
