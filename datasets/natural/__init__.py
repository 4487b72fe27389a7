"""Published data sets whose users are natural ones: schools, hospitals, planes, speakers."""
